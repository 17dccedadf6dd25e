"""The embedded models and clip, and the scripts that made them."""

NOTE = "embedded demo model: it knows only the drawn people of the demo clip's world"
"""What everybody who uses an embedded model is told with its results."""
