"""Graph partitioners as placers."""
