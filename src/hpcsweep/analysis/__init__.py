"""From the merged tables to pictures, tables and decisions."""
