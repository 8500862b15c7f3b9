"""Published data sets, and a folder of your own, as a manifest: one file each."""
