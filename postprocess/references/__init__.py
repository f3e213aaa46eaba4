"""References from perflogs, in reading order:

spread        the tolerance that a value needs, by its variation
progress      how far each test case is from a reference
editing       reading and writing reference files, comments included
proposal      ./plumb references propose and accept
acceptance    differences between proposed and accepted references
refinement    accepted tolerances that nightly sessions narrow
level         all metrics of a session together against their references
"""
