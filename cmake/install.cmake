# find_package(quire) and pkg-config.
include(CMakePackageConfigHelpers)

add_library(quire_c INTERFACE)
target_link_libraries(quire_c INTERFACE quire_shared)
set_target_properties(quire_c PROPERTIES EXPORT_NAME c)

install(TARGETS quire_headers quire_shared quire_static quire_c
  EXPORT quire-targets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT quire-targets
  NAMESPACE quire::
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/quire")

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/quire-config.cmake.in" "${PROJECT_BINARY_DIR}/quire-config.cmake"
  INSTALL_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/quire")
# 0.x: every minor version may change the ABI.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/quire-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/quire-config.cmake"
  "${PROJECT_BINARY_DIR}/quire-config-version.cmake"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/quire")

# Relative to the file itself, so that an installed tree may be moved.
file(RELATIVE_PATH quire_pc_up "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
string(REGEX REPLACE "/$" "" quire_pc_up "${quire_pc_up}")
set(quire_pc_prefix "\${pcfiledir}/${quire_pc_up}")
configure_file("${CMAKE_CURRENT_LIST_DIR}/quire.pc.in" "${PROJECT_BINARY_DIR}/quire.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/quire.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
