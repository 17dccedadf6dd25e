"""A camera for tests: GStreamer's RTSP server with a moving ball. Runs under the system's Python, which has `gi`.

`rtsp_server.py [PORT [WIDTH HEIGHT]]` says its port in one line and serves `/camera` until its standard input ends.
"""

from __future__ import annotations

import sys
import threading

import gi  # type: ignore[import-not-found]

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # type: ignore[import-not-found]  # noqa: E402

LAUNCH = (
    "( videotestsrc is-live=true pattern=ball ! video/x-raw,width={width},height={height},framerate=30/1 "
    "! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=15 ! rtph264pay name=pay0 pt=96 config-interval=1 )"
)


def main() -> None:
    """Serve."""
    port, width, height = [*sys.argv[1:], *("0", "320", "240")[len(sys.argv) - 1 :]]
    Gst.init(None)
    loop, server, factory = GLib.MainLoop(), GstRtspServer.RTSPServer(), GstRtspServer.RTSPMediaFactory()
    factory.set_launch(LAUNCH.format(width=width, height=height))
    factory.set_shared(True)
    server.set_address("127.0.0.1")
    server.set_service(port)
    server.get_mount_points().add_factory("/camera", factory)
    if not server.attach(None):
        raise SystemExit(f"port {port} is taken")
    sys.stdout.write(f"{server.get_bound_port()}\n")
    sys.stdout.flush()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.quit()), daemon=True).start()
    loop.run()


if __name__ == "__main__":
    main()
