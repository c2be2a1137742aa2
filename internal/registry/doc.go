// Package registry fetches images. A Puller writes an image, as the registry has it, into an archive of the OCI layout;
// nothing is unpacked and nothing in it is believed but sizes and digests, which are checked. What the archive holds is
// read elsewhere, by a confined worker (package ociimage).
//
// No connection is made to a private, local or reserved address unless the operator has allowed it. The address is
// looked at where the socket connects, so that neither a name that resolves to another address the second time nor a
// redirect leads around the check. Proxies and credentials of the host are not used.
package registry
