"""APIs of other servers that are not here: each path answers with a line that says what there is instead.

A file for each error shape. A path moves out of here when somebody serves it.
"""
