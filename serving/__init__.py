"""What runs in the image: engines that continue token ids, and the weights they load."""
