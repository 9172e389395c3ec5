// Everything that is compiled for the GPU, in one program.
#include "starling/kernels/cuda/renew.cuh"
#include "starling/kernels/cuda/update.cuh"
