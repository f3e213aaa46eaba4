"""References from perflogs, in reading order:

spread        the tolerance that a value needs, by its variation
progress      how far each test case is from a reference
editing       reading and writing reference files, comments included
writing       reference files, as ./plumb references calibrate writes them
status        ./plumb references status
"""
