"""The folder of a site, in reading order:

new             ./plumb site new, with its templates
detect          facts of a machine from the output of its commands
partitions      values of a partition that only a job would find to be wrong
check           ./plumb site check
cases           test cases that ReFrame generates for a site
spack_yaml      the site's YAML files for Spack
spack_schema    Spack's own schema, run by Spack's Python
doctor          ./plumb doctor: what can run here, and why not
"""
