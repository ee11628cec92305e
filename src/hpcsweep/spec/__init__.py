"""Files to points: reads a sweep or profile file, checks it, and expands it lazily."""
