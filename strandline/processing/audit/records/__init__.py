"""The decisions of an audit about records before they reach windows."""
