from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *

# The source distribution has the sources, but not all of its CMake files,
# and what there is clones the dependencies. So the build is described here,
# where a change of it changes the package's hash.
CMAKELISTS = """\
cmake_minimum_required(VERSION 3.13)
project(smartredis LANGUAGES CXX)
include(GNUInstallDirs)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
find_package(Threads REQUIRED)
find_package(hiredis REQUIRED)
find_package(redis++ REQUIRED)

file(GLOB sources src/c/*.cpp src/cpp/*.cpp)
add_library(smartredis SHARED ${sources})
target_include_directories(smartredis SYSTEM PUBLIC include)
target_link_libraries(smartredis
                      PUBLIC redis++::redis++ hiredis::hiredis
                      Threads::Threads)
install(TARGETS smartredis LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
"""


class Smartredis(CMakePackage):
    """The C++ and C library of the SmartRedis clients.

    It is linked with Spack's hiredis and redis-plus-plus; upstream links
    copies of its own.
    """

    homepage = "https://github.com/CrayLabs/SmartRedis"
    git = "https://github.com/CrayLabs/SmartRedis.git"
    # Where Python's package index keeps it is known to Spack's Python
    # packages only.
    pypi = "smartredis/smartredis-0.6.1.tar.gz"
    url = PythonPackage.__dict__["url"]

    license("BSD-2-Clause")

    version(
        "0.6.1",
        sha256="88bd5425abf03830382143c9b9acc2ee362e8251eafb46de48c515e9d6a373f5",
    )

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.18:", type="build")
    depends_on("hiredis@1.1:")
    depends_on("redis-plus-plus@1.3.8: cxxstd=17")

    def patch(self):
        with open("CMakeLists.txt", "w") as handle:
            handle.write(CMAKELISTS)

    def test_library(self):
        """all libraries that it is linked with are found"""
        tool = which("ldd", required=True)
        library = find_libraries("libsmartredis", self.prefix, recursive=True)
        output = tool(library[0], output=str.split)
        assert "not found" not in output, output
        check_outputs([str(self.spec["hiredis"].prefix)], output)
