"""The set-up of a checkout, in reading order:

venv            virtual environment, MPI and stores from lock files
bundle          ./plumb bundle
bundle_file     the file of ./plumb bundle
stacks          ./plumb spack
docs            ./plumb docs
benchmark       ./plumb benchmark new, with its templates
"""
