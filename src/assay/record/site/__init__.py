"""The report's pages: templates, style and scripts, and what sets numbers, prose, strips and plots into them."""
