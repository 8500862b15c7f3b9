"""Find when a query is heard.

Find the times at which the sound of a query is heard: labels of frames, and windows from scores of frames.
"""
