"""Optimizers, one file per family. Names and settings: loadmaster.catalog and loadmaster.catalog."""
