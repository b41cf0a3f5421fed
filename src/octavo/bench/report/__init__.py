"""What a measurement shows: tables with units, charts, and the files they are written to.

table.py, chart.py   what is shown     writers/   svg, png, html, json: a file each, found by its suffix
"""
