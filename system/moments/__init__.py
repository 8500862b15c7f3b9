"""When in a recording a sentence is heard: labellings of frames, and windows from scores of frames."""
