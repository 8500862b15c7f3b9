"""What a recipe will take, without torch: parameters, memory, disk, hours."""
