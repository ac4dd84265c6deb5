"""Every executed notebook, figure and live panel at two widths, light and dark, in sheets of pictures to look at.

    python scripts/screenshot_sheets.py [FIGURES] [--out FOLDER] [--of pages figures panels] [--width W …] [--theme T …]

FIGURES is where `sparsepipe reproduce` exported to: its page, the pages of executed notebooks, its figures. Panels are
the widgets in a JupyterLab of the command's own, beside the runs that lie there. A line is printed for words that lie
over others, that are cut off, and for a page that scrolls sideways.
"""
