"""The page of a finished run.

page.py gathers the content, clips.py and moments.py give that of a task, and page.html has the texts and the layout.
"""
