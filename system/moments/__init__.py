"""Find when a query is heard.

Find the times at which a sentence is heard: labellings of frames, and windows from scores of frames.
"""
