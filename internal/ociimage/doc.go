// Package ociimage turns an archive of an OCI or Docker image into a root file system. It reads what strangers wrote, so
// it runs in a short-lived worker (Worker) that node confines: no network, no capability outside its own user namespace,
// no file but the descriptors it is given. Node looks at nothing but the small result.
//
// Two runs make an image. ModeScan reads everything once, checks digests and limits, and lists the owners of files, so
// that node can map exactly those ids for the second run. ModeBuild unpacks the layers in order into a directory and makes
// the ext4 image of it.
//
// Inside the directory nothing leads out: paths are resolved component by component as if the directory were /, and all
// access goes through os.Root, which would refuse what that missed.
package ociimage
