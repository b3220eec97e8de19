"""The aggregate functions of windows. A module or a folder contains everything about one function, or about a family of them."""
