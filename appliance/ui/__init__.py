"""The web admin pages under `/ui/`: the same services as `/api/v1`, as HTML for people.

`routes` puts it together; `access` lets in sessions only; `views` renders; `live` pushes what changes; `pages` has one file a page.
"""
