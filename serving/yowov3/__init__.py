"""Writes a user's own YOWOv3 as the ONNX file that Stage 1 runs; nothing of that project's code is here."""
