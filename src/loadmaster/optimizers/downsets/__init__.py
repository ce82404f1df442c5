"""The dynamic programme over downsets: stages of a pipeline in any order that dependencies allow."""
