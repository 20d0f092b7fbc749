# A list of sources is written by hand; this makes a forgotten file an error at configure time.
function(quire_check_sources folder)
  file(GLOB_RECURSE found RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}/${folder}"
    "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.c")
  foreach(file IN LISTS found)
    if(NOT file IN_LIST ARGN)
      message(SEND_ERROR "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${file} is in no source list")
    endif()
  endforeach()
endfunction()
