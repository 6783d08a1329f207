"""The server of SavedModels: an ingress with protocols and limits, and engines that compute."""
