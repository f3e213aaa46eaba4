"""The set-up of a checkout, in reading order:

venv            virtual environment, MPI and stores from lock files
stacks          ./plumb dev spack
docs            ./plumb dev docs
benchmark       ./plumb dev benchmark new, with its templates
"""
