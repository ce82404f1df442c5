"""Plans of graphs too large to search whole: coarse problems first, then windows of the step one by one."""
