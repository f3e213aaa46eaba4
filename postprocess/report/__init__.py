"""The page and its plots, in reading order:

build       ./plumb report
page        the content of the page; templates/ shows it
testcases   a test case of the page, and its names
cards       health, and what failed, regressed or changed
details     what the script of the page shows: test cases, all values
sections    families and the comparison of sites, with their plots
grid        the grid of results
curves      values over sessions
tidy        records prepared for plots and page
summary     quantiles of many repetitions
charts      colours, sizes, axes and legends; PNG and PDF
svg         plots as SVG, and as parts of the page
plots/      one module per kind of plot
plot        ./plumb plot
"""
