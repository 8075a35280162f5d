"""Jobs on the public data source: `millrace spark export` and `millrace spark replay`, for programs to call, too."""
