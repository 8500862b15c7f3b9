"""Search filters.

Filters of a search, in the syntax of Solr, which Freesound's API uses.
"""

import re

from data_tools.freesound.sounds import format_time
from data_tools.freesound.windows import Window


def filter_in_parentheses(user_filter: str | None) -> list[str]:
    """Return a list with the user's filter in parentheses as its only item; [] if there is no filter.

    If the filter starts with an exclusion, `*:*` (all sounds) is put before it: Solr does so only at the top level.
    """
    if not user_filter:
        return []
    excludes = re.match(r"\s*(?:NOT\s|[-!])", user_filter) and not re.search(r"\bOR\b|\|\|", user_filter)
    return [f"(*:* {user_filter})" if excludes else f"({user_filter})"]


def upload_filter(window: Window) -> str:
    """Return the search filter for sounds uploaded in a time window."""
    return f"created:[{format_time(window.first * 1000)} TO {format_time(window.last * 1000 + 999)}]"
