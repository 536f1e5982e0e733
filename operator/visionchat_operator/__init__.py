"""VisionChat's control plane: the VisionChat resource and the operator that keeps it true."""
