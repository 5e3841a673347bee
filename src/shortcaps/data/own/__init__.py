"""Images of one's own: class folders, a CSV file, or a folder of Hugging Face `datasets`."""
