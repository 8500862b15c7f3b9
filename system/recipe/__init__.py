"""What a recipe says: its schema, and the reader that names every mistake."""
