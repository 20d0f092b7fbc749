# Private interface targets: warnings for our own code, sanitizers when asked for. Never exported.
add_library(quire_warnings INTERFACE)
target_compile_options(quire_warnings INTERFACE
  -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow -Wcast-align -Wvla)
if(QUIRE_WERROR)
  target_compile_options(quire_warnings INTERFACE -Werror)
endif()

add_library(quire_sanitize INTERFACE)
if(QUIRE_SANITIZE)
  target_compile_options(quire_sanitize INTERFACE
    -fsanitize=${QUIRE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(quire_sanitize INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()
