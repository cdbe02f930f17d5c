// The kernels of rotation.cu and rotation_eights.cu where rows have places of three numbers: see rotation_places.cuh.
