"""A folder of photos → a project with keypoints: marked by a person, predicted for the rest, imported and exported."""
