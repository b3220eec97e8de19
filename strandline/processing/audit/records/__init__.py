"""What an audit decides of records before they come to windows."""
