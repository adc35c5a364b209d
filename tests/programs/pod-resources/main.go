// Prints, as JSON, what kubelet's own client reads of the PodResources API at the socket that it is given.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
)

const (
	timeout    = 30 * time.Second
	maxMessage = 16 << 20
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client, connection, err := podresources.GetV1Client(ctx, "unix://"+os.Args[1], timeout, maxMessage)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	list, err := client.List(ctx, &v1.ListPodResourcesRequest{})
	if err != nil {
		log.Fatal("List: ", err)
	}
	all, err := client.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{})
	if err != nil {
		log.Fatal("GetAllocatableResources: ", err)
	}
	said := map[string]any{"pods": list.PodResources, "allocatable": all.Devices}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}
