"""VisionChat's data plane: the HTTP gateway, the durable queue, the model replicas and their engines."""

__version__ = "0.1.0"
