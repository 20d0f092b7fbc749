# All options, with defaults that follow "top level or not".
include(GNUInstallDirs)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

option(QUIRE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(QUIRE_BUILD_EXAMPLES "Build the examples (needs OpenBLAS and fmt)" ${PROJECT_IS_TOP_LEVEL})
option(QUIRE_BUILD_BENCH "Build the benches (Google Benchmark where it is found)" ${PROJECT_IS_TOP_LEVEL})
option(QUIRE_INSTALL "Generate install rules" ${PROJECT_IS_TOP_LEVEL})
option(QUIRE_WERROR "Treat warnings as errors" OFF)
set(QUIRE_CUDA AUTO CACHE STRING "CUDA module: AUTO, ON or OFF (not in this version: AUTO is OFF)")
set(QUIRE_SANITIZE "" CACHE STRING "Sanitizers for all targets, e.g. address,undefined")

if(QUIRE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "QUIRE_CUDA=ON: the CUDA module is not in this version; use AUTO or OFF")
endif()
