"""The set-up of a checkout, in reading order:

venv            virtual environment, MPI and stores from lock files
stacks          ./plumb spack
docs            ./plumb docs
benchmark       ./plumb benchmark new, with its templates
"""
