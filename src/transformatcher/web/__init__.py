"""The page, and the small server behind it: photos in a browser → points on all of them, and a COCO file."""
