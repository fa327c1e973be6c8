"""The routes of the studio's API: project, photos, objects, categories, files, and uploads."""
