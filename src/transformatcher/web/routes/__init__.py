"""The routes of the page's API: sessions, photos, points, and COCO files."""
