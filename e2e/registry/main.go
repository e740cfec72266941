// Command registry is the CNCF Distribution registry with one storage driver, the file system: without the drivers of all clouds it
// builds in a minute. The end-to-end tests push images and chart of a release to it.
package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if err := registry.RootCmd.Execute(); err != nil {
		os.Exit(1)
	}
}
